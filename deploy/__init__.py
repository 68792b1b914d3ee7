"""Ways to run Twophase elsewhere than on the machine one sits at."""

"""`twophase probe`: which half of an answer is slow, measured from outside, at any OpenAI-compatible server.

target.py      the server: its address, its models, its refusals in words
stream.py      one streamed answer, timed as its bytes come
finding.py     from timed answers to shares and a verdict
advice.py      what to do about it, in the measured numbers
measure.py     warm-up and requests, one after the other, within a time limit
show.py        the finding on a terminal, or as JSON
trouble.py     why there is none
"""

"""What all dashboards share: data sources, the kinds of panels, and the frame around them.

Every panel gets a unit and a text that says what it means and what to do about it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    timeseries,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    DataSourceRef,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    ScaleDistribution,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
    VariableOption,
    VariableRefresh,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = DataSourceRef(type_val="prometheus", uid="twophase-prometheus")  # fixed in provisioning/
TAG = "twophase"

SECONDS = "s"
SHARE = "percentunit"
REQUESTS = "reqps"
TOKENS_PER_S = "suffix: tokens/s"
TOKENS = "suffix: tokens"
COUNT = "short"
EVENTS = "cps"
TIMES = "suffix:×"

REFS = "ABCDEFGH"  # names of the queries of a panel
HEIGHT = 9
WIDTH = 24  # of Grafana's grid

Panel = timeseries.Panel | heatmap.Panel | stat.Panel | statetimeline.Panel


@dataclass(frozen=True)
class Query:
    """One query of a panel. `axis`: the unit of a second axis, on the right, for this query alone."""

    expr: str
    legend: str
    exemplars: bool = False
    axis: str | None = None


def lines(title: str, unit: str, about: str, *queries: Query) -> timeseries.Panel:
    """Lines over time."""
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .line_width(2)
        .fill_opacity(5)
        .show_points(VisibilityMode.NEVER)
        .legend(_legend())
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .targets(_targets(queries))
    )
    for ref, query in zip(REFS, queries, strict=False):
        if query.axis is not None:
            panel.override_by_query(ref, _right_axis(query.axis))
    return panel


def stacked(title: str, unit: str, about: str, *queries: Query) -> timeseries.Panel:
    """Areas on top of each other: only for what may be added up."""
    panel = lines(title, unit, about, *queries)
    return panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40).line_width(1)


def against(panel: timeseries.Panel, *limits: tuple[float, str]) -> timeseries.Panel:
    """The panel with dashed lines at values that decide something, each in its colour."""
    return panel.thresholds(_steps("transparent", limits)).thresholds_style(
        common.GraphThresholdsStyleConfig().mode(GraphThresholdsStyleMode.DASHED)
    )


def heat(title: str, unit: str, about: str, query: Query) -> heatmap.Panel:
    """Buckets of a histogram over time."""
    return (
        heatmap.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .calculate(False)
        .color(heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Oranges").steps(64))
        .y_axis(heatmap.YAxisConfig().unit(unit))
        .scale_distribution(common.ScaleDistributionConfig().type(ScaleDistribution.LOG).log(10))
        .exemplars_color("rgba(0, 90, 220, 0.8)")
        .with_target(_target(query).ref_id("A").range().format(PromQueryFormat.HEATMAP))
    )


def figure(
    title: str, unit: str, about: str, query: Query, *limits: tuple[float, str], below: str = "red"
) -> stat.Panel:
    """One number for the whole time shown, coloured by the highest limit it reaches."""
    panel = (
        stat.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit(unit)
        .min(0)
        .graph_mode(BigValueGraphMode.NONE)
        .with_target(_target(query).ref_id("A").instant())
    )
    return panel.thresholds(_steps(below, limits)) if limits else panel


def states(title: str, about: str, query: Query, names: Mapping[int, tuple[str, str]]) -> statetimeline.Panel:
    """What something was at each moment; `names` gives every value a name and a colour."""
    shown = {str(value): ValueMappingResult(text, color) for value, (text, color) in names.items()}
    return (
        statetimeline.Panel()
        .title(title)
        .description(about)
        .datasource(SOURCE)
        .unit("none")
        .min(min(names))
        .max(max(names))
        .mappings([ValueMap(shown)])
        .merge_values(True)
        .show_value(VisibilityMode.AUTO)
        .row_height(0.8)
        .legend(_legend())
        .targets(_targets([query]))
    )


def board(name: str, title: str, about: str) -> dashboard.Dashboard:
    """An empty dashboard that looks at chosen instances, linked to the others."""
    others = dashboard.DashboardLink("Twophase").type(DashboardLinkType.DASHBOARDS).tags([TAG])
    return (
        dashboard.Dashboard(f"Twophase: {title}")
        .uid(f"twophase-{name}")
        .description(about)
        .tags([TAG])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("15s")
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .link(others.placement("").keep_time(True).include_vars(True))
        .with_variable(_instances())
    )


def row(onto: dashboard.Dashboard, title: str, *panels: Panel, height: int = HEIGHT) -> None:
    """Add a row of panels, side by side and equally wide."""
    onto.with_row(dashboard.Row(title))
    for panel in panels:
        onto.with_panel(panel.height(height).span(WIDTH // len(panels)))


def _instances() -> dashboard.QueryVariable:
    every = VariableOption(selected=True, text="All", value="$__all")
    return (
        dashboard.QueryVariable("instance")
        .label("Instance")
        .datasource(SOURCE)
        .query("label_values(twophase_ready, instance)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(every)
    )


def _targets(queries: Sequence[Query]) -> list[Builder[Dataquery]]:
    return [_target(query).ref_id(ref).range() for ref, query in zip(REFS, queries, strict=False)]


def _target(query: Query) -> prometheus.Dataquery:
    return (
        prometheus.Dataquery()
        .datasource(SOURCE)
        .expr(query.expr)
        .legend_format(query.legend)
        .exemplar(query.exemplars)
    )


def _right_axis(unit: str) -> list[DynamicConfigValue]:
    return [
        DynamicConfigValue("unit", unit),
        DynamicConfigValue("custom.axisPlacement", "right"),
        DynamicConfigValue("custom.fillOpacity", 0),
        DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [6, 4]}),
    ]


def _legend() -> common.VizLegendOptions:
    return (
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def _steps(base: str, limits: Sequence[tuple[float, str]]) -> dashboard.ThresholdsConfig:
    steps = [Threshold(None, base), *(Threshold(value, color) for value, color in limits)]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)

"""Values that several tests install the chart with."""

EVERYTHING = (
    "networkPolicy.enabled=true",
    "metrics.serviceMonitor.enabled=true",
    "metrics.prometheusRule.enabled=true",
    "dashboards.enabled=true",
    "podDisruptionBudget.enabled=true",
)
SELECTOR = {"app.kubernetes.io/name": "rljob-operator", "app.kubernetes.io/instance": "rljob"}

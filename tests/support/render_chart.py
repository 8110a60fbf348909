"""Lints and renders a Helm chart with Helm's library. Runs in the environment of requirements.txt.

Usage: render_chart.py CHART VALUES_JSON. Prints {"messages": [...], "manifests": {template: YAML}} or {"error": words}.
"""

import json
import sys

import helm_python  # type: ignore[import-not-found]


def main(chart: str, values_json: str) -> None:
    values = json.loads(values_json)
    report = helm_python.lint(chart, values, strict=True)
    loaded = helm_python.Chart.load(chart)
    try:
        loaded.validate_schema(values)
        manifests = loaded.render(values, name="speech", namespace="voices", revision=1, is_install=True)
    except helm_python.HelmError as error:
        print(json.dumps({"error": str(error)}))
        return
    print(json.dumps({"messages": report["messages"], "manifests": manifests}))


if __name__ == "__main__":
    main(*sys.argv[1:])

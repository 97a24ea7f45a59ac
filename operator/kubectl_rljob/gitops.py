"""Who else writes the object: GitOps tools that put a changed spec back."""

from typing import Any

_ANNOTATIONS = {"argocd.argoproj.io/tracking-id": "Argo CD"}
_LABELS = {
    "argocd.argoproj.io/instance": "Argo CD",
    "kustomize.toolkit.fluxcd.io/name": "Flux",
    "helm.toolkit.fluxcd.io/name": "Flux",
}


def owner(metadata: dict[str, Any]) -> str | None:
    """The tool whose tracking mark the object carries."""
    marks = (("annotations", _ANNOTATIONS), ("labels", _LABELS))
    return next((tool for part, known in marks for key, tool in known.items() if key in metadata.get(part, {})), None)


def warning(tool: str, action: str) -> str:
    """Why spec.suspend stays as it is, and where to change it for good."""
    value = "true" if action == "suspend" else "false"
    return (
        f"warning: {tool} owns this object, so spec.suspend was not edited (it would be put back). The request "
        f"holds until spec.suspend changes or you ask again; to make it permanent, set spec.suspend: {value} in Git."
    )

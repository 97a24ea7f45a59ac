"""Objects of `resource.k8s.io/v1`, as a driver, an administrator, a user and kube-scheduler make them."""

from typing import Any

DRIVER = "gpu.example.com"
FULL = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
"""As the classes of NVIDIA's driver select full GPUs."""


def make_slice(node: str, gpus: int, driver: str = DRIVER, **fields: Any) -> dict[str, Any]:
    """All GPUs of a node. `fields`: of the slice's spec, or `device`: further fields of each device."""
    each = fields.pop("device", {})
    basic = {"attributes": {"type": {"string": "gpu"}}, "capacity": {"memory": {"value": "80Gi"}}} | each
    devices = [{"name": f"gpu-{i}"} | basic for i in range(gpus)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": devices} | fields
    return {"metadata": {"name": f"{node}-{driver}"}, "spec": spec}


def make_class(name: str, *expressions: str, extended: str = "") -> dict[str, Any]:
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": text}} for text in expressions]}
    return {"metadata": {"name": name}, "spec": spec | ({"extendedResourceName": extended} if extended else {})}


def make_template(name: str, *requests: dict[str, Any], **devices: Any) -> dict[str, Any]:
    """`requests`: what is asked for exactly."""
    asked = [{"name": f"r{i}", "exactly": request} for i, request in enumerate(requests)]
    meta = {"name": name, "namespace": "research"}
    return {"metadata": meta, "spec": {"spec": {"devices": {"requests": asked} | devices}}}


def make_claim(pod: str, node: str, *devices: str, namespace: str = "research") -> dict[str, Any]:
    """Allocated for a pod."""
    results = [{"request": "r0", "driver": DRIVER, "pool": node, "device": device} for device in devices]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [{"resource": "pods", "name": pod}]}
    return {"metadata": {"name": f"{pod}-gpus", "namespace": namespace}, "spec": {}, "status": status}

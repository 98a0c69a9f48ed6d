"""What a machine without PyTorch sees of a root: ROOT, and what must be found there (tests/golden/v0/expected.json)."""

import contextlib
import hashlib
import json
import sys
from pathlib import Path

import lamina

root = Path(sys.argv[1])
steps = json.loads(Path(sys.argv[2]).read_text())[root.name]
store = lamina.open(root)
assert [str(step["step"]) for step in store.steps()] == list(steps)
raw = set()
for step, expected in steps.items():
    found = store.load(int(step))
    for name, (dtype, shape, digest) in expected.items():
        assert hashlib.sha256(found[name].tobytes()).hexdigest() == digest, name
        assert found[name].shape == tuple(shape), name
        if isinstance(found[name], lamina.RawArray):
            assert found[name].dtype_name == dtype, name
            raw.add(dtype)
assert "bfloat16" in raw
assert len(raw) == 8, raw
assert store.verify()["ok"]
assert {"Checkpointer", "open"} <= set(dir(lamina))
with contextlib.suppress(ModuleNotFoundError):
    lamina.Checkpointer(root)
    raise AssertionError("PyTorch is here")
print(f"lamina {lamina.__version__}: {sum(map(len, steps.values()))} tensors as they were saved, of {len(raw)} dtypes as their bits")

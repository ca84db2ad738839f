"""The Python on the front page, as it stands there: ``mypy`` checks this file with the package; nothing runs it."""

import meshwright as mw

result = mw.plan("llama-3.1-8b", "dgx-h100:8", batch=mw.Batch(global_batch=64))
print(result.step_seconds, result.gap_ratio)  # None where nothing fits, or nothing is proven

"""The model behind scripts/predict.py (docs/reference/prediction/model.md).

inputs    the keys, and the reader of the YAML file
model     the time of averages, as closed forms
simulate  the same by simulation of every message
fit       the model's parameters, fitted to measurements
steps     predicted steps, and where compression begins to pay
report    the tables, the words and the verdict
"""

from lib import require

require({"numpy": "NumPy", "scipy": "SciPy", "yaml": "PyYAML"})

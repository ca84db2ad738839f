"""The one judge: play a plan task by task and see how long it takes and what it holds."""

"""What this project claims about speed is measured here: `python -m ttt_teach.bench [TABLE ...]`, or `--device`."""

"""Calibration: how far a judge agrees with people who have labelled the same conversations."""

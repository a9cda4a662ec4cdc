"""Calibration: measure how well a judge agrees with people who have labeled the same conversations."""

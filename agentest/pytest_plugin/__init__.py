"""Run scenarios as pytest items. pytest always loads `plugin`; the other modules are imported on use."""

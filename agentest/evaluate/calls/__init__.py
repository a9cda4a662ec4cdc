"""Tool calls that were made against tool calls that are expected. No model is asked."""

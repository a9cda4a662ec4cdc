"""A receiver of agents' own traces, and what they tell of tool calls and model calls."""

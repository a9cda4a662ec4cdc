"""Match the tool calls that an agent made against the expected calls, without a model.

`matcher` has `TrajectoryMatcher`, which decides. From the ground up: `matching` (pairs of rows and columns),
`call_facts` (what is known about the calls), `differences`, and `alignment` (the result call by call).
"""

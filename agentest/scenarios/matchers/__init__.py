"""Matchers for expected values, for cases in which more than one value is acceptable.

`comparison` compares expected and actual values. The matchers are in `values` (`optional`, `absent`,
`one_of`, `each`, `instance`, `text`) and `numbers` (`number`, `approx`); a `Form` is a matcher written as
data. `validity` rejects values that can never match, `differences` finds arguments by path and reports the
differing parts, and `display` formats values as they were written.
"""

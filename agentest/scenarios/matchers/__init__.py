"""The words for values: what stands in the place of a value where more than one will do.

`comparison` decides whether an expected value and an actual one are equal. The words are in `values`
(`optional`, `absent`, `one_of`, `each`), `quantities` (`number`, `approx`), `texts` and `instances`; `forms`
are those that were written as data. `checking` refuses what could never hold, `paths` finds arguments,
`problems` tells which part differs, `showing` shows what was written. `numbers` reads one number, and
`said_numbers` those of a reply.
"""

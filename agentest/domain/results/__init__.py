"""Results: frozen values, from one score to the whole run.

`judging` creates scores and trajectories, `domain.verdict` creates verdicts, `runner` combines them, and
`report` only reads them.
"""

from agentest.domain.results.evaluations import *  # noqa: F403
from agentest.domain.results.run import *  # noqa: F403

"""Many samples through many graders at once."""

from adjudge.graders.binding import GraderConfig
from adjudge.runner.journal import Journal
from adjudge.runner.runner import GradingRunner, RunnerResult

__all__ = ["GraderConfig", "GradingRunner", "Journal", "RunnerResult"]

"""Many samples through many graders at once."""

from adjudge.runner.journal import Journal
from adjudge.runner.question import GraderConfig
from adjudge.runner.runner import GradingRunner, RunnerResult

__all__ = ["GraderConfig", "GradingRunner", "Journal", "RunnerResult"]

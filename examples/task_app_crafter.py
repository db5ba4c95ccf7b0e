"""Crafter as a task app: pip install . ./lab crafter; python examples/task_app_crafter.py

Trainers set task_url = "http://127.0.0.1:8001" under [services]. For trainers on other machines set
ENVIRONMENT_API_KEY, here and there, and HOST=0.0.0.0.
"""

import os

from adjudge.rubrics import GlobalRubric, RubricBundle
from adjudge_lab.environments import CrafterEnvironment, TaskAppConfig, serve_task_app

rubric = GlobalRubric(
    id="crafter/bundle@v1",
    description="How well an episode of Crafter was played",
    criteria=("Unlocks achievements", "Stays alive and fed", "Plans ahead and wastes no actions"),
    scoring_guide={"0.0-0.3": "aimless", "0.3-0.7": "some progress", "0.7-1.0": "to a plan"},
)
config = TaskAppConfig(
    app_id="crafter",
    name="Crafter in words",
    make=CrafterEnvironment,
    rubrics=RubricBundle(global_rubric=rubric),
)

if __name__ == "__main__":
    serve_task_app(config, os.environ.get("HOST", "127.0.0.1"), int(os.environ.get("PORT", "8001")))

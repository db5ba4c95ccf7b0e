"""RuscaRL: rubrics as a scaffold that training rollouts are shown, less and less of it."""

"""Chat models: who answers graders' questions, over HTTP, from a file, or in this process."""

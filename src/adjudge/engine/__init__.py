"""The one event loop, killable processes and the sandbox."""

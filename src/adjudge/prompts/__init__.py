"""What a judge is asked, as text: templates, and fences that no text inside them can close."""

from adjudge.prompts.fence import clean_text
from adjudge.prompts.template import ChatMessage, LanguageEnum, PromptTemplate, RenderedPrompt

__all__ = [
    "ChatMessage",
    "LanguageEnum",
    "PromptTemplate",
    "RenderedPrompt",
    "clean_text",
]

"""What a judge is asked, as text: templates, and fences that no text inside them can close."""

from adjudge.prompts.fence import clean_text
from adjudge.prompts.messages import ChatMessage, LanguageEnum
from adjudge.prompts.template import PromptTemplate, Rendered

__all__ = [
    "ChatMessage",
    "LanguageEnum",
    "PromptTemplate",
    "Rendered",
    "clean_text",
]

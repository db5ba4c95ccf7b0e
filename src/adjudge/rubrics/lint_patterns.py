"""The wording that the lint rules look for, English and Chinese, as patterns.

They are matched against the demand in lower case, without asides and examples. None has a
repetition inside a repetition, so all are linear in the text.
"""

from __future__ import annotations

import re

__all__ = [
    "ANCHOR",
    "ANY_OF",
    "ASIDE",
    "AVOIDS",
    "DOUBLE",
    "EXAMPLES",
    "FAULT",
    "INCLUDE",
    "JOINED",
    "KNOWLEDGE",
    "MENTION",
    "MODAL",
    "NEGATED",
    "NEGATION",
    "SAYS_WHAT",
    "SENTENCE",
    "SHUNS_HARM",
    "SOURCES",
    "STEP",
    "VAGUE",
]

_SUBJECT = r"^(?:the (?:response|answer|assistant|model|output) )?"
_MUST = r"(?:should |must )?"
_ZH_SUBJECT = r"^(?:回答|回复|答案)?(?:中)?(?:应该?|需要?|必须)?"

ASIDE = re.compile(
    r"\([^()]*\)|（[^（）]*）|\"[^\"]*\"|“[^“”]*”|「[^「」]*」|《[^《》]*》"
    r"|(?<=\s)'[^']{1,200}'(?=[\s.,;:])"
)
EXAMPLES = re.compile(
    r"(?:\be\.g\.|\bi\.e\.|\bsuch as\b|\bfor example\b|\bfor instance\b|例如|比如|诸如)[^.;。；]*"
)
ANY_OF = re.compile(
    r"\b(?:at least (?:one|two|three|\d+)|any of|one of|one or more|either|some of)\b"
    r"|至少|任一|任意|之一"
)

# compound
_VERBS = (
    r"(?:acknowledge|add|advise|answer|apologi[sz]e|ask|assess|avoid|calculate|cite|clarify|"
    r"compare|conclude|confirm|define|demonstrate|describe|discourage|discuss|distinguish|"
    r"emphasi[sz]e|encourage|ensure|evaluate|explain|express|give|highlight|identify|identifie|"
    r"include|incorporate|indicate|inform|inquire|instruct|justify|justifie|maintain|mention|"
    r"outline|prioriti[sz]e|propose|provide|recommend|refrain|remind|specify|specifie|suggest|"
    r"summari[sz]e|urge|utili[sz]e|verify|verifie|warn|write)(?:s|es)?"
)
_PARTICIPLES = (
    r"(?:acknowledg|add|advis|answer|ask|assess|avoid|clarify|compar|confirm|defin|demonstrat|"
    r"describ|discuss|emphasi[sz]|encourag|ensur|explain|giv|highlight|identify|includ|"
    r"incorporat|indicat|inform|maintain|mention|not|outlin|provid|recommend|refrain|specify|"
    r"stat|suggest|summari[sz]|us|utili[sz]|warn|writ)ing"
)
_USE = r"use\b(?! (?:of|in|for|as|or|and)\b)"
_ZH_VERBS = (
    "(?:说明|解释|提到|提及|包含|包括|给出|列出|使用|避免|指出|提供|描述|建议|引用|强调|回答|分析)"
)
JOINED = re.compile(
    r"(?:\band|\bwhile|\bas well as|;)(?: (?:also|then|not|must|should|clearly|correctly|"
    r"explicitly|accurately|appropriately|it)){0,3} "
    rf"(?:(?:{_VERBS}|{_PARTICIPLES})\b(?!-)|{_USE})"
    r"|;(?: it| the response| the answer)? (?:should|must)\b"
    rf"|(?:并且|而且|同时|并|且|以及|和|，还要?|，并){_ZH_VERBS}|；"
)
MODAL = re.compile(r"\b(?:should|must|needs? to|has to|have to)\b")
STEP = re.compile(r"\bstep \d|步骤\s?[一二三四1-9]")
SENTENCE = re.compile(r"(?<=[a-z)\]]{2})[.!?]\s+(?=[A-Z])|\n+|[。；]")

# presence_only
MENTION = re.compile(
    _SUBJECT + r"(?:should |must |clearly |briefly |also )?"
    r"(?:mentions?|discuss(?:es)?|address(?:es)?|references?|touch(?:es)? (?:on|upon)|"
    r"refers? to|talks? about|covers?)\b|" + _ZH_SUBJECT + r"(?:提到|提及|涉及|谈到|讨论)"
)
INCLUDE = re.compile(
    _SUBJECT + _MUST + r"(?:includes?|contains?)\b|" + _ZH_SUBJECT + r"(?:包含|包括)"
)
SAYS_WHAT = re.compile(
    r"\b(?:that|correct\w*|accurat\w*|precis\w*|exact\w*|right|true|valid|proper\w*|how|why|when|"
    r"whether|including|instructions?|because|due to|is|are|was|were|can|may|will|needs?|phrase|"
    r"sentence|words?|keyword\w*|as|if|in case)\b|\d|[:：\"“「'’‘`]"
    r"|正确|准确|确切|真实|因为|如何|为什么|是否"
)

# unverifiable
_ADVERBS = (
    r"(?:appropriately|adequately|properly|suitably|sufficiently|nicely|naturally|effectively|"
    r"reasonably|satisfactorily|helpfully|meaningfully|well)"
)
_MADE = r"(?:formatted|structured|detailed|written|organi[sz]ed|balanced|phrased|explained|worded)"
_ADJECTIVES = (
    r"(?:appropriate|suitable|adequate|good|nice|great|helpful|useful|natural|engaging|"
    r"interesting|compelling|high[- ]quality|reasonable|proper|sufficient|satisfactory|excellent|"
    r"effective|well[- ]written|insightful|meaningful|elegant)"
)
_OF_RESPONSES = (
    r"(?:responses?|answers?|tone|level|details?|depth|length|language|style|format|formatting|"
    r"manner|way|amount|quality|structure|writing|flow|explanations?|advice|information|context|"
    r"wording|clarity|summary|overview|story|examples?)"
)
VAGUE = re.compile(
    rf"\b(?:{_ADVERBS}(?= *(?:[,.;]|$| {_MADE}))|{_ADJECTIVES} (?:\w+ )?{_OF_RESPONSES}|"
    rf"(?:{_OF_RESPONSES}|it) "
    r"(?:is|are|(?:should|must) be|sounds?|feels?|seems?|reads?) (?:\w+ )?"
    rf"{_ADJECTIVES})\b"
    r"|适当|合适|恰当|良好|有帮助|自然流畅|合理|生动|高质量|优秀"
)
ANCHOR = re.compile(
    r"\d|[:：\"“「`(（]|\b(?:such as|e\.g|i\.e|for example|including|that|by \w+ing|without|"
    r"at least|at most|no more than|because|if|when|unless|since)\b|例如|比如|包括|至少|不超过"
)
KNOWLEDGE = re.compile(
    r"\b(?:reference (?:answer|solution|response)|ground[- ]truth|gold(?:en)? answer|factuality|"
    r"factual(?:ly)? (?:\w+ )?(?:accura\w+|correct\w*|incorrect\w*|errors?)|"
    r"no (?:factual )?(?:errors|inaccuracies))\b|参考答案|标准答案|事实(?:准确|正确|错误)"
)
SOURCES = re.compile(
    r"\b(?:according to|based on|consistent with|align(?:s|ed)? with|in line with|reflects?|"
    r"follows?) (?:the )?(?:most )?(?:current|latest|recent|established|up[- ]to[- ]date) "
    r"(?:\w+ ){0,2}(?:guidelines?|evidence|research|literature|standards?|knowledge|consensus)\b"
    r"|最新(?:指南|研究)"
)

# double_negative, polarity, overlap
DOUBLE = re.compile(
    r"\b(?:not|never|n't|cannot|fails? to|avoids?|refrains? from|without)(?: \w+)? "
    r"(?:fail(?:s|ing)? to|omit(?:s|ting)?|avoid(?:s|ing)?|neglect(?:s|ing)?|lack(?:s|ing)?|"
    r"refrain(?:s|ing)?|miss(?:es|ing)?)\b"
    r"|(?:不|没有|并非|避免|未)(?:要|能|会|应|可)?(?:不|没有|避免|遗漏|未能)"
)
NEGATED = re.compile(
    _SUBJECT + r"(?:should |must |does |do |did |is |has |have )?"
    r"(?:not\b|never\b|no\b|avoids?\b|refrains? from\b|fails? to\b|failed to\b|lacks?\b|"
    r"omits?\b|neglects? to\b|without\b|excludes?\b|\w+n't\b)"
    r"|" + _ZH_SUBJECT + r"(?:不|没有|未|避免|缺少|遗漏|禁止)"
)
NEGATION = re.compile(
    _SUBJECT + _MUST + r"(?:does not |doesn't |do not |fails? to |failed to |neglects? to |omits? |"
    r"lacks? |not |never )|^(?:未能?|没有|不|遗漏|缺少)"
)
"""A leading negation that leaves the thing itself when it is taken away."""
AVOIDS = re.compile(
    _SUBJECT + _MUST + r"(?:avoids?\b|refrains? from\b|is free (?:of|from)\b|steers clear)|^避免"
)
SHUNS_HARM = re.compile(
    _SUBJECT + r"(?:does not|doesn't|should not|must not|never) (?:\w+ ){0,4}"
    r"(?:harmful|unsafe|incorrect|inaccurate|wrong|misleading|dangerous|unnecessary|"
    r"contraindicated|unproven|false|inappropriate|unsupported|fabricat\w*|hallucinat\w*)\b"
)
FAULT = re.compile(
    _SUBJECT + r"(?:fails? to|failed to|neglects? to|omits?|fabricates?|hallucinates?|"
    r"incorrectly|inaccurately|falsely|wrongly|misrepresents?|misstates?)\b"
    r"|^(?:未能|缺少|遗漏|捏造|编造|错误地)"
)

"""The words by which a judge says that one of several things is better, as patterns.

They are written for text in small letters whose mentions are signs
(:mod:`adjudge.verdicts.choice`), in English and Chinese. What must not stand beside them (a
denial, a condition, somebody else's opinion) stands below; :mod:`adjudge.verdicts.choice` puts
both together. Every repetition is bounded, so that each pattern takes time linear in the text.
"""

from __future__ import annotations

import re

_X = "(?P<x>[\ue000-\ue0ff])\x01*"
_Y = "[\ue000-\ue0ff]\x01*"
_W = r"(?:[a-z][a-z'/-]{0,20}\s{1,3}){0,4}?"
_WORDS = r"(?:[a-z][a-z'/-]{0,20}\s{1,3}){0,8}?"
"""Up to four words between, up to eight."""
_ZH = r"[^\n。，,；;！？?\ue000-\ue0ff]"
_TIE = r"(?P<tie>(?:a\s)?(?:tie|draw)|tied|equal|both|neither|平局|平手|相同|一样)(?![a-z])"
_IS = (
    r"(?:is|was|are|'s|seems?|appears|looks|remains|stands\sout|comes\sout|proves|emerges|feels|"
    r"(?:would|should|will|must|can|has\sto)\sbe)"
)
_ASIDE = r"(?:,\s[^,.\n]{1,60},)?"
_AND = r"(?:/|&|,?\s?(?:and|or|nor|as\swell\sas)\s|、|和|或|与|跟)"
_ALONE = rf"(?!\s{{0,3}}{_AND}\s{{0,3}}(?:the\s)?{_Y})"
"""Not the first of several mentions."""
_SUBJECT = rf"{_X}\s{{0,3}}{_ASIDE}\s{{0,3}}"

_SUPERIOR = (
    r"(?:better|superior|prefer(?:able|red)|best|strong(?:er|est)|winner|chosen|favou?red)(?![a-z])"
)
_WINS = (
    r"(?:wins|won|prevails|comes\sout\s(?:on\stop|ahead)|takes\sit|gets\smy\svote|is\sthe\sone\si|"
    r"is\sthe\s(?:final\s|right\s)?(?:choice|pick)|"
    rf"(?:is|was|would\sbe)\smy\s{_W}(?:choice|pick|preference|answer|selection))(?![a-z])"
)
_BEATS = (
    rf"(?:>{{1,3}}|{_W}(?:beats|outperforms|surpasses|outshines|outranks|trumps|edges\sout|"
    r"wins\sover))"
)
_SUPERIOR_ZH = (
    r"(?:更好|更优|更佳|更胜一筹|较好|较优|最好|最优|最佳|胜出|获胜|略胜|优于|好于|胜过|胜于|强于|更强|更合适|"
    r"更符合|更值得)"
)
PREFERRED_PATTERNS = (
    # Output (b) is clearly the better one; Output (b), on the other hand, is better
    re.compile(rf"{_SUBJECT}{_IS}\s{{1,3}}{_W}{_SUPERIOR}"),
    # the better output is (b); the winner is B
    re.compile(
        rf"(?:better|best|superior|preferred|preferable|winning|stronger)\s{{1,3}}{_WORDS}"
        rf"(?:is|was|would\sbe|goes\sto|:|=)\s{{0,3}}:?\s{{0,3}}{_W}{_X}{_ALONE}"
    ),
    # B wins, B gets my vote, B is my choice
    re.compile(rf"{_X}\s{{1,3}}{_WINS}"),
    # B outperforms A, B > A
    re.compile(rf"{_X}\s{{0,3}}{_BEATS}\s{{0,3}}{_W}{_Y}"),
    # B更好, B优于A, B比A好
    re.compile(rf"{_X}{_ZH}{{0,12}}?{_SUPERIOR_ZH}"),
    re.compile(rf"{_X}(?:比|较|相比){_Y}{_ZH}{{0,12}}?(?:好|优|佳|强|胜)"),
)
# I prefer B over A; choose B
_CHOSEN = re.compile(
    r"(?<![a-z])(?:choos(?:e|ing)|chose|pick(?:ed)?|prefer|select|favou?r|go(?:ing)?\swith|"
    r"vot(?:e|ing)\sfor|opt\sfor|lean(?:ing)?\stowards?|leaning\sto|recommend|declare|side\swith)"
    rf"\s{{1,3}}{_W}{_X}{_ALONE}"
)
_CHOSEN_ZH = re.compile(
    r"(?:选择|我选|选|更?喜欢|倾向于?|推荐|偏好|支持|判定|认为)[\s:]{0,3}(?:了|是|为)?[\s:]{0,3}"
    rf"{_X}{_ALONE}(?=[\s。.，,；;！!]|$|胜|是更好)"
)
CHOICE_PATTERNS = (_CHOSEN, _CHOSEN_ZH)
REJECTED_PATTERNS = (
    re.compile(
        rf"{_SUBJECT}(?:{_IS}\s|,\s(?:but|though|although|which\sis)\s){{1,3}}{_W}"
        r"(?:worse|inferior|weaker|worst)(?![a-z])"
    ),
    re.compile(rf"{_X}\s{{0,3}}<{{1,3}}\s{{0,3}}{_Y}"),
    re.compile(rf"{_X}{_ZH}{{0,6}}?(?:不如|不及|劣于|逊于|逊色于|更差|较差)"),
)
# Without one of these no pattern above matches; most sentences are done with by it.
PREFERENCE_HINT = re.compile(
    r"better|best|superior|prefer|strong|w[io]n|chos|choos|pick|favou?r|prevail|comes\s|takes\s|gets\s|"
    r"my\s|the\s(?:one|final|right|choice)|beats|outper|surpass|outsh|outrank|trump|edges|select|go|vot|"
    r"opt\s|lean|recommend|declare|side|worse|worst|inferior|weak|[^\x00-\x7f\ue000-\ue0ff]|[<>]"
)
_LABELS = (
    r"(?:verdict|answer|choice|decision|judge?ment|winner|preference|selection|conclusion|result|pick|"
    r"vote|ranking|evaluation|response|output|option|better|best|preferred|chosen|label)"
)
_LABELS_ZH = (
    r"(?:最终(?:选择|结论|答案|裁决|判断|结果)|获胜者|胜者|胜出者|"
    r"(?:更|较)好的(?:回答|答案|选项|输出)?)"
)
# Final verdict: B; the winner is B; 选择：B; Therefore: B
VERDICT_LABEL = re.compile(
    r"(?P<word>(?:^|(?<=[\n.!?。！？]))[\s#>*-]{0,6}(?:(?:so|thus|therefore|hence),?\s)?(?:"
    r"(?:(?:my|the|your|final|overall|better|best|preferred|winning)\s{1,2}){0,3}"
    rf"{_LABELS}|therefore|选择|结论|答案|裁决|判断|结果|{_LABELS_ZH})"
    r"|(?<![a-z])(?:final\s(?:verdict|answer|choice|decision|judge?ment)|winner|verdict|"
    r"my\s(?:verdict|choice|decision|pick|vote|preference|answer|judge?ment))"
    rf"|{_LABELS_ZH})"
    r"\s{0,3}(?:\s(?:is|was|goes\sto|would\sbe)|[:=]|->|为|是)[\s:]{0,4}"
    r"(?:(?:that|clearly|definitely|obviously|the|an?|for|in\sfavou?r\sof|it's|answer:|choose|select)"
    rf"\s{{1,2}}){{0,3}}[\"'(\[]{{0,2}}(?:{_X}|{_TIE}){_ALONE}"
    r"(?=[\s\"')\]]{0,3}(?:$|[.,;:!。，；！>(\n-]|because|since|as\b|over|wins|with|by|for|更|胜|"
    r"is\s(?:\w{1,12}\s){0,2}(?:better|best|superior|winner|preferred|preferable)))",
    re.MULTILINE,
)
_END = r"[\s.!。\"')\]]{0,8}$"
# Output (b)
VERDICT_LINE = re.compile(rf"^[\s#\"'(\[-]{{0,8}}(?:{_X}|{_TIE}){_END}", re.MULTILINE)
_EQUAL = (
    r"(?:equal(?:ly)?|equivalent|tied?|identical|the\ssame|comparable|on\s(?:a\s)?par|"
    r"similar(?:ly)?)"
)
TIE_STATEMENT = re.compile(
    r"(?<![a-z])(?:"
    rf"(?:both|the\stwo|two|they|{_Y}\s{{1,3}}(?:and|&)\s{{1,3}}(?:the\s)?{_Y})(?![a-z])"
    rf"[^,;.\n]{{0,60}}?(?<![a-z]){_EQUAL}(?![a-z])"
    r"|(?:it(?:'s|\sis)|this\sis|call\sit|results?\sin|ends?\sin|declare)\sa\s(?:tie|draw)(?![a-z])"
    r"|neither[^.,;\n]{0,80}(?:better|superior|good|best|satisf|correct|acceptable)"
    r"|(?:no|not\sa)\s(?:clear\s|real\s|significant\s){0,2}(?:winner|preference)"
    r"|(?:cannot|can't|can\snot|unable\sto|impossible\sto|hard\sto)\s(?:really\s)?"
    r"(?:decide|determine|choose|say\swhich|pick)"
    r"|(?:两者|二者|两个|两份|它们|都|均)[^。，,；;\n]{0,16}"
    r"(?:相同|一样|差不多|相当|不相上下|平局|平手|同样好|同等|难分|没有区别))"
)

SENTENCE_PATTERN = re.compile(r"[^\n.!?。！？]+(?:\.(?!\s|$)[^\n.!?。！？]*)*[.!?。！？\n]*")
CONCLUSION_WORDS = re.compile(
    r"\b(?:therefore|thus|hence|overall|consequently|ultimately|so|finally|(?:in|to)\s(?:conclusion|"
    r"summary|conclude|sum\sup|summarize|short)|all\sin\sall|as\sa\sresult|on\sbalance|on\sthe\swhole|"
    r"for\s(?:this|these|that)\sreasons?|given\s(?:this|that|these|the\sabove)|conclude|conclusion|"
    r"based\son\s(?:this|these|that|the|my|our)|considering\s(?:this|these|all|the|that)|final)\b"
    r"|因此|所以|综上|总之|总的来说|总体|整体|综合|最终|最后|故"
)
CLAUSE_BREAK = re.compile(
    r"[,;:，；：()]|\b(?:so|but|and|while|whereas|because|since|therefore|thus|hence|making|although|"
    r"though|however|as)\b|但|而|因此|所以"
)

# What must not stand before a statement: in its sentence (the first), in its clause (the others).
SUPPOSITION_OPENING = re.compile(
    r"\W{0,4}(?:(?:but\s|and\s|so\s|however,?\s|only\s){0,2}(?:if|unless|suppose|supposing|assuming|"
    r"whether|when|for\s(?:those|users|readers|people)|depending)\b|(?:from\s)?worst\sto\b|如果|假如|若)"
)
SUPPOSITION_WORDS = re.compile(
    r"\b(?:if|unless|whether|which|might|may|could|would\shave|should\shave|suppose|assuming|depending|"
    r"people|users|readers|others|pretend)\b|是否|如果|假如|可能"
)
REPORTED_SPEECH = re.compile(
    r"\b(?:says?|said|claims?|claiming|states?|insists?|asserts?|argues?|pretends?|instructs?|tells?|"
    r"asks?|asking|demands?|writes?|wrote|thinks?|believes?|according\sto|evaluates?|requests?)\b|"
    r"声称|要求|写道"
)
FIRST_PERSON = re.compile(
    r"\b(?:i|we|i'd|i'll|we'd|my|me|to|would|can)\s(?:\w{1,10}\s)?(?:would\s|must\s|can\s)?\Z"
)
NEGATION_WORDS = re.compile(
    r"\b(?:not|never|no|neither|nor|hardly|cannot|disagree|doubt|rather\sthan|instead\sof|without|"
    r"far\sfrom|less|least)\b(?!\sonly)|n't\b|(?:并?不(?![如及])|没有|并非|未必|难以)"
)
COUNTERFACTUAL_WORDS = re.compile(r"\b(?:if|unless|had|were)\b")
LIST_BEFORE = re.compile(rf"{_Y}\s{{0,3}}{_AND}\s{{0,3}}(?:the\s)?\Z")
COMPARISON_BEFORE = re.compile(
    r"(?:than|over|versus|vs\.?|unlike|as|to|with|from|like|in|of)\s{1,3}(?:the\s)?\Z|[比较]\Z"
)
JUDGE_SUBJECT = re.compile(
    # The judge, or nobody: "choose B".
    r"(?:^\W{0,4}(?:(?:please|just|then|so|overall)\s){0,2}|(?:因此|所以|综上|故)\W?)\Z"
    r"|(?:[我请应]|\b(?:i|we|i'd|i'll|i'm|we'd|we'll|me|must|should|to|let's|am)\b)[^,;:\n]{0,40}\Z"
)

# What limits a statement: to a condition (so that it is none), or to one respect.
CONDITION_AFTER = re.compile(r"\s{0,3},?\s{0,2}(?:if|unless|had|provided\sthat|assuming)\b")
LIMITATION_AFTER = re.compile(
    r"\s{0,3}(?:\w{1,12}\s)?(?:at\s(?!follow|execut|answer|address|fulfil|meet|adher)|regarding|with\s(?:respect|regard)|when\s|from\s(?:a|an|the)\s|"
    r"in\s(?!every\b|all\b|both\b|general\b|my\b|most\b|\w{1,14}ing\b)|as\sfar\sas|"
    r"on\s(?:this|that|the)\s|(?:written|organi[sz]ed|structured|formatted|grounded|phrased|explained)\b|"
    r"than\s(?:expected|nothing)|for\s(?:those|users|people|readers)|"
    r"for\s(?!\w{1,14}ing\b|(?:the|this|that|these|our|my|your|it)\b)\w{2,14})"
)
LIMITATION_BEFORE = re.compile(
    r"(?:^|[,;]\s|\b(?:but|and|however|while)\s)\W{0,4}(?:in\sterms\sof|regarding|when\sit\scomes\sto|"
    r"with\s(?:respect|regard)\sto|in\s(?:this|that|one|some)\s(?:respect|regard|sense|aspect)|as\sfor|"
    r"from\s(?:a|an|the)\s|at\sfirst|initially|on\sthe\ssurface|for\s\w{1,14},)[^.;]{0,120}\Z"
)

"""Text that must not reach a terminal unchanged: control sequences, invisible characters, Textual markup.

The numbers are ones that no honest screen uses, so that a payload is found in the bytes of a whole session.
"""

ESC, ST, BEL = "\x1b", "\x1b\\", "\x07"

SEQUENCES = (
    # colour, conceal, clear screen, clear scrollback, clear line, cursor to a place
    *(f"{ESC}[31;5;9m", f"{ESC}[8m", f"{ESC}[2J", f"{ESC}[3J", f"{ESC}[2K", f"{ESC}[777;777H"),
    # cursor up, scroll region, insert lines, repeat a character, the other screen off, mouse off
    *(f"{ESC}[99A", f"{ESC}[5;6r", f"{ESC}[9L", f"A{ESC}[999b", f"{ESC}[?1049l", f"{ESC}[?1003l"),
    # paste marks off, line wrap, report the cursor, report the status, primary attributes, secondary attributes
    *(f"{ESC}[?2004l", f"{ESC}[?7h", f"{ESC}[6n", f"{ESC}[5n", f"{ESC}[c", f"{ESC}[>c"),
    # tertiary attributes, report the title, resize the window, soft reset, query a mode, keyboard protocol
    *(f"{ESC}[=c", f"{ESC}[21t", f"{ESC}[8;2;2t", f"{ESC}[!p", f"{ESC}[?25$p", f"{ESC}[>31u"),
    # end of a paste, unterminated CSI, unterminated parameters, title, icon name
    *(f"{ESC}[201~", f"{ESC}[", f"{ESC}[38;2;255", f"{ESC}]0;pwned{BEL}", f"{ESC}]1;pwned{ST}"),
    # window title, palette, working folder
    *(f"{ESC}]2;pwned{ST}", f"{ESC}]4;1;?{BEL}", f"{ESC}]7;file://evil/{BEL}"),
    # link, notification 9, colour query
    *(f"{ESC}]8;;https://evil.example{ST}here{ESC}]8;;{ST}", f"{ESC}]9;pwned{BEL}", f"{ESC}]11;?{BEL}"),
    # font, clipboard, clipboard query, prompt mark
    *(f"{ESC}]50;evil{BEL}", f"{ESC}]52;c;cHduZWQ={BEL}", f"{ESC}]52;c;?{ST}", f"{ESC}]133;A{BEL}"),
    # notification 777, file transfer, unterminated OSC
    *(f"{ESC}]777;notify;a;b{BEL}", f"{ESC}]1337;File=inline=1:AAAA{BEL}", f"{ESC}]0;pwned"),
    # DCS request, sixel, termcap query
    *(f'{ESC}P$q"p{ST}', f"{ESC}Pq#0;2;0;0;0{ST}", f"{ESC}P+q544e{ST}"),
    # tmux passthrough, unterminated DCS, graphics
    *(f"{ESC}Ptmux;{ESC}{ESC}]52;c;cHduZWQ={BEL}{ST}", f"{ESC}Pq", f"{ESC}_Ga=q,i=31;AAAA{ST}"),
    # PM, SOS, full reset, index, reverse index, alignment, line drawing
    *(f"{ESC}^pwned{ST}", f"{ESC}Xpwned{ST}", f"{ESC}c", f"{ESC}D", f"{ESC}M", f"{ESC}#8", f"{ESC}(0"),
    # save the cursor, leave UTF-8, ESC alone, ESC before a sequence, 8-bit CSI, 8-bit OSC, 8-bit DCS
    *(f"{ESC}7", f"{ESC}%@", ESC, f"{ESC}{ESC}[2J", "\x9b2J", "\x9d0;pwned\x9c", "\x90q\x9c"),
    # 8-bit APC, 8-bit PM, 8-bit SOS, 8-bit reverse index, 8-bit next line
    *("\x9fGa=q\x9c", "\x9epwned\x9c", "\x98pwned\x9c", "\x8d", "\x85"),
)
CONTROLS = (
    # bell, backspaces, carriage return, vertical tab, form feed, NUL, shift out, enquiry, delete, XOFF, cancel
    *(BEL, "safe\b\b\b\bevil", "safe\revil", "\v", "\f", "\0", "\x0e", "\x05", "\x7f", "\x13", "\x18"),
    # file separator
    *("\x1c",),
)
INVISIBLE = (
    # right to left override, right to left isolate, left to right mark, Arabic letter mark, zero width space
    *("\u202etxt.exe", "\u2067evil\u2069", "\u200e", "\u061c", "pay\u200bpal"),
    # zero width joiner, word joiner, byte order mark, tag characters, soft hyphen, line separator
    *("a\u200db", "\u2060", "\ufeff", "\U000e0049\U000e0067\U000e006e", "\u00ad", "a\u2028b"),
    # paragraph separator, interlinear annotation
    *("a\u2029b", "\ufff9"),
)
MARKUP = (
    # closing tag, closing anything, open tag, an action, a link
    *("[/x]", "[/]", "[bold", "[@click=app.quit]quit[/]", "[link=file:///etc/passwd]passwd[/link]"),
    # a colour, a variable, brackets, a format
    *("[red on white]warning[/]", "[$error]", "[[[[]", "{0.__class__} %s %(x)s"),
)
UNSAFE = (*SEQUENCES, *CONTROLS, *INVISIBLE)
ALL = (*UNSAFE, *MARKUP)

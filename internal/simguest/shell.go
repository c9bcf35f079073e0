package simguest

import (
	"errors"
	"strings"
)

// shell runs sh -c and sh -lc, or a script that WriteFiles put into the guest.
func shell(p *process, args []string) (int, error) {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") && !strings.Contains(args[0], "c") {
		args = args[1:]
	}
	if len(args) == 0 {
		return 0, nil
	}
	script := args[0]
	if strings.HasPrefix(script, "-") {
		if len(args) < 2 {
			return p.complain(2, "sh: -c needs a script")
		}
		script = args[1]
	} else {
		data, err := p.read(script)
		if err != nil {
			return p.complain(127, "sh: can't open '%s': %v", script, err)
		}
		script = string(data)
	}
	sub := *p
	code, err := sub.script(script)
	var ended exitError
	if errors.As(err, &ended) {
		return int(ended), nil
	}
	return code, err
}

// script runs commands separated by new lines, ;, && and ||. It is no shell:
// quotes, $NAME, >&2 and "set -e" are all there is beyond that.
func (p *process) script(text string) (code int, err error) {
	commands, err := parseScript(text, func(name string) string { return p.env[name] })
	if err != nil {
		return p.complain(2, "sh: %v", err)
	}
	errexit := false
	for _, c := range commands {
		if c.after == "&&" && code != 0 || c.after == "||" && code == 0 {
			continue
		}
		if c.words[0] == "set" {
			errexit = errexit || len(c.words) > 1 && strings.Contains(c.words[1], "e")
			code = 0
			continue
		}
		if code, err = p.command(c.words); err != nil {
			return code, err
		}
		if code != 0 && errexit && !c.guarded {
			return code, nil
		}
	}
	return code, nil
}

func (p *process) command(words []string) (int, error) {
	run := *p
	run.env = p.env
	if n := len(words); n > 1 && words[n-1] == ">&2" {
		words, run.stdout = words[:n-1], p.stderr
	}
	if words[0] == "" {
		return p.complain(127, "sh: : not found")
	}
	code, err := run.exec(words)
	p.cwd = run.cwd
	return code, err
}

// command of a script; after is the operator in front of it.
type scriptCommand struct {
	words   []string
	after   string
	guarded bool // its failure is looked at by an operator that follows
}

var errSyntax = errors.New("only new lines, ;, &&, || and >&2 are simulated, and quotes must close")

// parseScript cuts a script into commands. It refuses what it does not know,
// so that nothing is silently run differently.
func parseScript(text string, lookup func(string) string) ([]scriptCommand, error) {
	var out []scriptCommand
	cur, after := []string(nil), ""
	flush := func(next string) error {
		if len(cur) == 0 && (next == "&&" || next == "||") {
			return errSyntax
		}
		if len(cur) > 0 {
			out = append(out, scriptCommand{cur, after, next == "&&" || next == "||"})
			cur, after = nil, next
		} else if after != "&&" && after != "||" {
			after = next
		}
		return nil
	}
	for rest := text; rest != ""; {
		switch c := rest[0]; {
		case c == ' ' || c == '\t' || c == '\r':
			rest = rest[1:]
		case c == '\n' || c == ';':
			rest = rest[1:]
			if err := flush(";"); err != nil {
				return nil, err
			}
		case strings.HasPrefix(rest, "&&") || strings.HasPrefix(rest, "||"):
			if err := flush(rest[:2]); err != nil {
				return nil, err
			}
			rest = rest[2:]
		case strings.HasPrefix(rest, ">&2"):
			cur, rest = append(cur, ">&2"), rest[3:]
		case strings.HasPrefix(rest, "1>&2"):
			cur, rest = append(cur, ">&2"), rest[4:]
		case c == '#':
			_, rest, _ = strings.Cut(rest, "\n")
			if err := flush(";"); err != nil {
				return nil, err
			}
		default:
			word, tail, err := parseWord(rest, lookup)
			if err != nil {
				return nil, err
			}
			cur, rest = append(cur, word), tail
		}
	}
	return out, flush(";")
}

func parseWord(text string, lookup func(string) string) (word, rest string, err error) {
	var b strings.Builder
	for text != "" {
		switch c := text[0]; {
		case strings.IndexByte(" \t\r\n;", c) >= 0, strings.HasPrefix(text, "&&"), strings.HasPrefix(text, "||"):
			return b.String(), text, nil
		case strings.IndexByte("|&<>`(", c) >= 0:
			return "", "", errSyntax
		case c == '\'':
			body, tail, ok := strings.Cut(text[1:], "'")
			if !ok {
				return "", "", errSyntax
			}
			b.WriteString(body)
			text = tail
		case c == '"':
			if text, err = parseQuoted(&b, text[1:], lookup); err != nil {
				return "", "", err
			}
		case c == '$':
			text = expand(&b, text[1:], lookup)
		case c == '\\' && len(text) > 1:
			b.WriteByte(text[1])
			text = text[2:]
		default:
			b.WriteByte(c)
			text = text[1:]
		}
	}
	return b.String(), "", nil
}

func parseQuoted(b *strings.Builder, text string, lookup func(string) string) (rest string, err error) {
	for text != "" {
		switch c := text[0]; {
		case c == '"':
			return text[1:], nil
		case c == '$':
			text = expand(b, text[1:], lookup)
		case c == '\\' && len(text) > 1 && strings.IndexByte(`"\$`+"`", text[1]) >= 0:
			b.WriteByte(text[1])
			text = text[2:]
		case c == '`':
			return "", errSyntax
		default:
			b.WriteByte(c)
			text = text[1:]
		}
	}
	return "", errSyntax
}

// expand writes the value of the variable that text begins with.
func expand(b *strings.Builder, text string, lookup func(string) string) (rest string) {
	if body, ok := strings.CutPrefix(text, "{"); ok {
		if name, tail, ok := strings.Cut(body, "}"); ok {
			b.WriteString(lookup(name))
			return tail
		}
	}
	n := 0
	for n < len(text) && (text[n] == '_' || text[n] >= 'A' && text[n] <= 'Z' || text[n] >= 'a' && text[n] <= 'z' || n > 0 && text[n] >= '0' && text[n] <= '9') {
		n++
	}
	if n == 0 {
		b.WriteByte('$')
		return text
	}
	b.WriteString(lookup(text[:n]))
	return text[n:]
}

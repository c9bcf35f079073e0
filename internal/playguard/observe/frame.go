package observe

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Version is the version of the frame format.
const Version = 1

// Limits of an answer. What exceeds one is refused as a whole, never cut.
const (
	MaxAnswer   = 8 << 20  // bytes of standard output
	MaxPreamble = 64 << 10 // bytes of banners before the frame
	MaxParts    = 16 << 10
	MaxPart     = 4 << 20  // bytes of one part
	MaxErrText  = 4 << 10  // bytes of one part's standard error
	MaxLine     = 64 << 10 // bytes of one line in a part
	maxHeader   = 512
)

const (
	beginWord = "FUSE-LOOK "
	partWord  = "PART "
	endWord   = "END "
)

// Part is one part of an answer: a command's output, and how it ended.
type Part struct {
	Name   string
	Status int
	Out    []byte
	Err    []byte
}

// fault says what is wrong with an answer. If partial, some of it was there
// and nothing in it was wrong.
type fault struct {
	reason  Reason
	partial bool
	text    string
}

func (f *fault) Error() string { return f.text }

var (
	noncePattern = regexp.MustCompile(`^[0-9a-f]{16,64}$`)
	partPattern  = regexp.MustCompile(`^PART ([a-z]+(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127}){0,2}) (\d{1,3}) (\d{1,8}) (\d{1,8})$`)
	endPattern   = regexp.MustCompile(`^END ([0-9a-f]{16,64}) (\d{1,8}) (\d{1,8}) ([0-9a-f]{64})$`)
)

// Encode writes an answer as the runner does, for hosts that are simulated and
// for tests. A nonce or part that no runner could write is an error.
func Encode(nonce string, parts []Part) ([]byte, error) {
	if !noncePattern.MatchString(nonce) {
		return nil, fmt.Errorf("nonce %q: want 16 to 64 hexadecimal digits", nonce)
	}
	var body bytes.Buffer
	for _, p := range parts {
		header := fmt.Sprintf("PART %s %d %d %d", p.Name, p.Status, len(p.Out), len(p.Err))
		if !partPattern.MatchString(header) {
			return nil, fmt.Errorf("part header %q is malformed", header)
		}
		body.WriteString(header + "\n")
		body.Write(p.Out)
		body.Write(p.Err)
		body.WriteByte('\n')
	}
	sum := sha256.Sum256(body.Bytes())
	var out bytes.Buffer
	fmt.Fprintf(&out, "%s%d %s\n", beginWord, Version, nonce)
	out.Write(body.Bytes())
	fmt.Fprintf(&out, "%s%s %d %d %x\n", endWord, nonce, len(parts), body.Len(), sum)
	return out.Bytes(), nil
}

// decode takes an answer apart. It gives either every part of a complete
// frame or a fault, never some parts.
func decode(nonce string, answer []byte) ([]Part, *fault) {
	if !noncePattern.MatchString(nonce) {
		return nil, &fault{reason: ReasonParse, text: "no nonce to look for"}
	}
	if len(answer) > MaxAnswer {
		return nil, &fault{ReasonTooLarge, false, fmt.Sprintf("answer is over %d bytes", MaxAnswer)}
	}
	rest, f := findBegin(nonce, answer)
	if f != nil {
		return nil, f
	}
	body := rest
	var parts []Part
	for {
		line, after, ok := cutLine(rest)
		if !ok {
			return nil, incomplete(rest, "line without an end")
		}
		if strings.HasPrefix(line, endWord) {
			if f := checkEnd(line, nonce, len(parts), body[:len(body)-len(rest)]); f != nil {
				return nil, f
			}
			return parts, nil
		}
		m := partPattern.FindStringSubmatch(line)
		if m == nil {
			return nil, malformed("a line that is neither a part nor the end")
		}
		part, next, f := cutPart(m, after)
		if f != nil {
			return nil, f
		}
		if len(parts) == MaxParts {
			return nil, &fault{ReasonTooLarge, false, fmt.Sprintf("answer has over %d parts", MaxParts)}
		}
		parts, rest = append(parts, part), next
	}
}

func malformed(text string) *fault { return &fault{ReasonParse, false, text} }

// incomplete is the fault of an answer that ended early, unless what is there
// is longer than any line.
func incomplete(rest []byte, text string) *fault {
	if len(rest) > maxHeader {
		return malformed(text)
	}
	return &fault{ReasonCut, true, "answer ends before its end line: " + text}
}

// findBegin skips banners and returns what follows the begin line.
func findBegin(nonce string, answer []byte) ([]byte, *fault) {
	want := fmt.Sprintf("%s%d %s", beginWord, Version, nonce)
	rest := answer
	for {
		line, after, ok := cutLine(rest)
		if !ok {
			if len(rest) > 0 && strings.HasPrefix(want, string(rest)) {
				return nil, &fault{ReasonCut, true, "answer ends in its begin line"}
			}
			return nil, &fault{reason: ReasonCut, text: "answer has no begin line"}
		}
		if line == want {
			return after, nil
		}
		if version, ok := strings.CutSuffix(line, " "+nonce); ok && strings.HasPrefix(version, beginWord) {
			return nil, malformed(fmt.Sprintf("frame version %.20q is unknown; this is version %d", strings.TrimPrefix(version, beginWord), Version))
		}
		rest = after
		if len(answer)-len(rest) > MaxPreamble {
			return nil, &fault{reason: ReasonTooLarge, text: fmt.Sprintf("over %d bytes before the begin line", MaxPreamble)}
		}
	}
}

func cutLine(b []byte) (line string, rest []byte, ok bool) {
	i := bytes.IndexByte(b, '\n')
	if i < 0 {
		return "", b, false
	}
	return string(b[:i]), b[i+1:], true
}

func cutPart(m []string, rest []byte) (Part, []byte, *fault) {
	status, outLen, errLen := number(m[2]), number(m[3]), number(m[4])
	if outLen > MaxPart || errLen > MaxErrText {
		return Part{}, nil, &fault{ReasonTooLarge, false, "part " + m[1] + " is over its limit"}
	}
	if len(rest) < outLen+errLen+1 {
		return Part{}, nil, &fault{ReasonCut, true, "answer ends in part " + m[1]}
	}
	if rest[outLen+errLen] != '\n' {
		return Part{}, nil, malformed("part " + m[1] + " is not as long as it says")
	}
	return Part{Name: m[1], Status: status, Out: rest[:outLen], Err: rest[outLen : outLen+errLen]}, rest[outLen+errLen+1:], nil
}

// number reads digits that a pattern has counted.
func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic("observe: the pattern admits digits only: " + s)
	}
	return n
}

func checkEnd(line, nonce string, parts int, body []byte) *fault {
	m := endPattern.FindStringSubmatch(line)
	if m == nil || m[1] != nonce {
		return malformed("end line is malformed or of another answer")
	}
	sum := sha256.Sum256(body)
	if number(m[2]) != parts || number(m[3]) != len(body) || m[4] != hex.EncodeToString(sum[:]) {
		return malformed("parts, length or digest are not those of the end line")
	}
	return nil
}

package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"

	"golang.org/x/term"
)

// printJSON prints one of the API's objects, indented on a terminal.
func (a *app) printJSON(object any) error {
	return encode(a.Streams.Out, object, isTerminal(a.Streams.Out))
}

// printLine prints one object of many, on a line of its own.
func (a *app) printLine(object any) error { return encode(a.Streams.Out, object, false) }

// encode writes JSON in which all that a terminal would obey is escaped.
func encode(w io.Writer, object any, indent bool) error {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if indent {
		enc.SetIndent("", "  ")
	}
	if err := enc.Encode(object); err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	var out strings.Builder
	for _, r := range buf.String() {
		switch {
		case r == '\n' || unicode.IsPrint(r):
			out.WriteRune(r)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// Harmless is for commands of Options.Extra what verbs do with a text from
// elsewhere: see harmless.
func Harmless(s string) string { return harmless(s) }

// harmless takes out of a text what a terminal would obey. Hosts, guests and
// other users have a say in what is printed here.
func harmless(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

// cell is harmless text on one line.
func cell(s string) string { return oneLine.Replace(harmless(s)) }

var oneLine = strings.NewReplacer("\n", " ", "\t", " ")

// table prints rows under a heading.
func table(w io.Writer, heading []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(heading, "\t"))
	for _, r := range rows {
		for i := range r {
			r[i] = cell(r[i])
		}
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	return tw.Flush()
}

// sheet prints one object, a field a line; empty fields are left out.
func sheet(w io.Writer, fields [][2]string) error {
	fields = slices.DeleteFunc(slices.Clone(fields), func(f [2]string) bool { return f[1] == "" })
	width := 9
	for _, f := range fields {
		width = max(width, len(f[0]))
	}
	for _, f := range fields {
		if _, err := fmt.Fprintf(w, "%-*s %s\n", width, f[0], cell(f[1])); err != nil {
			return err
		}
	}
	return nil
}

// age renders how long ago t was, as people say it.
func age(now, t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	d := max(now.Sub(t), 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours()/24))
}

func dash(s string) string {
	return cmp.Or(s, "-")
}

func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// progressf prints a line of progress for people.
func (a *app) progressf(format string, args ...any) {
	if !a.quiet {
		fmt.Fprintln(a.Streams.Err, harmless(fmt.Sprintf(format, args...)))
	}
}

func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

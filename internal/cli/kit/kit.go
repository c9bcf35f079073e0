// Package kit is what the command line gives to the packages of its verbs.
package kit

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fusevm/fuse/internal/api/client"
)

// Tools are the parts of the command line that verbs are made with.
type Tools struct {
	Server func() (*client.API, error)
	Format func() (string, error) // "json", "name" or another
	// ListFormat is Format of a list, of which --quiet leaves the ids.
	ListFormat func() (string, error)
	PrintJSON  func(object any) error
	// PrintLine prints one object of many, on a line of its own.
	PrintLine func(object any) error
	Usage     func(format string, args ...any) error
	In        io.Reader
	Out, Err  io.Writer
	// Progress prints a line for people on stderr, unless --quiet.
	Progress func(format string, args ...any)
	// IsTerminal reports whether one of the three is a terminal.
	IsTerminal func(any) bool
	// Exit ends the program with a code; a nil error prints nothing.
	Exit func(code int, err error) error
	// Cell makes a text harmless and one line long.
	Cell  func(string) string
	Table func(w io.Writer, heading []string, rows [][]string) error
	Sheet func(w io.Writer, fields [][2]string) error
	Age   func(now, t time.Time) string
	// Environments completes the ids of at most that many arguments; Hosts those
	// of hosts.
	Environments func(most int) cobra.CompletionFunc
	Hosts        cobra.CompletionFunc
}

// PrintList prints a list whose first column is the id or the name.
func (t Tools) PrintList(object any, heading []string, rows [][]string) error {
	format, err := t.ListFormat()
	switch {
	case err != nil:
		return err
	case format == "json":
		return t.PrintJSON(object)
	case format == "name":
		for _, r := range rows {
			fmt.Fprintln(t.Out, t.Cell(r[0]))
		}
		return nil
	}
	return t.Table(t.Out, heading, rows)
}

// WholeSeconds rounds away from zero, which would mean the default.
func WholeSeconds(d time.Duration) int64 {
	if d > 0 {
		d += time.Second - 1
	}
	return int64(d / time.Second)
}

// Text reads what a flag gives as text or as @FILE.
func Text(v string) ([]byte, error) {
	name, isFile := strings.CutPrefix(v, "@")
	if !isFile {
		return []byte(v), nil
	}
	return os.ReadFile(name)
}

// ReadFiles reads files named as PATH=@FILE or PATH=TEXT, by their place in the
// guest.
func ReadFiles(args []string) (map[string][]byte, error) {
	var out map[string][]byte
	for _, arg := range args {
		place, from, ok := strings.Cut(arg, "=")
		if !ok || !strings.HasPrefix(place, "/") {
			return nil, fmt.Errorf("--file %.80q is not of the form /PATH=@FILE", arg)
		}
		data, err := Text(from)
		if err != nil {
			return nil, fmt.Errorf("--file %s: %w", place, err)
		}
		if out == nil {
			out = map[string][]byte{}
		}
		out[place] = data
	}
	return out, nil
}

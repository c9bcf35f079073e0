package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// printJSON prints the API's own object, indented on a terminal.
func (a *app) printJSON(raw []byte) error {
	var out bytes.Buffer
	if isTerminal(a.Streams.Out) {
		if err := json.Indent(&out, bytes.TrimSpace(raw), "", "  "); err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
	} else {
		out.Write(bytes.TrimSpace(raw))
	}
	out.WriteByte('\n')
	_, err := a.Streams.Out.Write(out.Bytes())
	return err
}

// table prints rows under a heading; cells hold no tabs.
func table(w io.Writer, heading []string, rows [][]string) error {
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, strings.Join(heading, "\t"))
	for _, r := range rows {
		fmt.Fprintln(tw, strings.Join(r, "\t"))
	}
	return tw.Flush()
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
	if s == "" {
		return "-"
	}
	return s
}

func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

package main

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// What the demonstration shows can be pasted into a shell.
func TestShownCommandsAreThoseThatRan(t *testing.T) {
	var all [][]string
	for _, commands := range demoCommands {
		all = append(all, commands...)
	}
	for _, argv := range append(all, []string{"it's", "", `a "b" \c`, "$HOME", "*", "a\nb", "~x", "#"}) {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\0' `+quoted(argv)).Output()
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); err != nil || !slices.Equal(got, argv) {
			t.Errorf("%q is shown as %s, of which a shell makes %q, %v", argv, quoted(argv), got, err)
		}
	}
}

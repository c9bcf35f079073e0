package cli

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// What the demonstration shows can be pasted into a shell.
func TestShownCommandsAreThoseThatRan(t *testing.T) {
	for _, argv := range [][]string{{"uname", "-a"}, {"sh", "-c", "echo $(cut -d' ' -f1 /proc/uptime) s"}, {"it's", "", `a "b" \c`, "$HOME", "*", "a\nb", "~x", "#", "a=b", "a;b"}} {
		out, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\0' `+Quoted(argv)).Output()
		if got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00"); err != nil || !slices.Equal(got, argv) {
			t.Errorf("%q is shown as %s, of which a shell makes %q, %v", argv, Quoted(argv), got, err)
		}
	}
}

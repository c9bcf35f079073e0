package records

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// A repository is one whichever way leads to it, and two are never one.
func TestPlace(t *testing.T) {
	const want = "git.example.org/a/b"
	for _, address := range []string{
		"https://git.example.org/a/b.git", "https://GIT.example.org/a/b/", "ssh://git@git.example.org/a/b", "ssh://git@git.example.org:2222/a/b.git",
		"https://git.example.org:8443/A/B", "ssh://git@ssh.git.example.org:443/a/b.git", "ssh://git@altssh.git.example.org/a/b",
	} {
		if got := Place(address); got != want {
			t.Errorf("%s is %s, want %s", address, got, want)
		}
	}
	for _, other := range []string{"https://git.example.org/a/c", "https://git.example.com/a/b", "https://git.example.org/x/a/b", "", "https://%zz/a/b"} {
		if Place(other) == want {
			t.Errorf("%s is %s too", other, want)
		}
	}
}

// A marker names variables, and never so many that it could not be read again.
func TestAMarkersVariables(t *testing.T) {
	s := Source{Repository: "https://git.example.org/x", Names: []string{"A", "B"}}
	if got := SourceOf(s.Marked()); !slices.Equal(got.Lost, s.Names) {
		t.Errorf("%v", got.Lost)
	} else if again := got.Marked(); !slices.Equal(again.Variables, s.Names) {
		t.Errorf("a marker that is written again, before they are given, names %v", again.Variables)
	}
	s.Names = slices.Repeat([]string{strings.Repeat("N", 200)}, 100)
	if got := SourceOf(s.Marked()); len(got.Lost) == 0 || len(strings.Join(got.Lost, "")) > maxNames {
		t.Errorf("%d names", len(got.Lost))
	}
	s.Names = nil
	for i := range 50 {
		s.Names = append(s.Names, fmt.Sprintf("VARIABLE_%02d", i))
	}
	for range 3 { // also when a marker is written again out of what one told
		if s = SourceOf(s.Marked()); len(s.Lost) != 20 || s.Lost[18] != "VARIABLE_18" || s.Lost[19] != "(and 31 more)" {
			t.Fatalf("%d: %v", len(s.Lost), s.Lost)
		}
	}
}

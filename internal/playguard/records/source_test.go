package records

import "testing"

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

package credential

import (
	"strings"
	"testing"
)

// A name to log in with is one line: git reads it as one of several.
func TestUsernames(t *testing.T) {
	for _, kind := range []Kind{KindToken, KindRegistry} {
		for name, ok := range map[string]bool{
			"ci": true, "oauth2": true, "ci\nhost=evil.example.org": false, "ci\rx": false, "ci\x00": false, strings.Repeat("x", maxUsername+1): false,
		} {
			err := Secret{Name: "registry.example.org", Kind: kind, Username: name}.Check([]byte("s3cret"))
			if (err == nil) != ok {
				t.Errorf("%s %.20q: %v", kind, name, err)
			}
		}
	}
}

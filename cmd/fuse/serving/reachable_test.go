package serving

import (
	"os"
	"testing"
)

func TestReachable(t *testing.T) {
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{
		"127.0.0.1:80": "127.0.0.1:80", "[::1]:80": "[::1]:80", "box:80": "box:80", "/run/a:1.sock": "/run/a:1.sock",
		"0.0.0.0:80": name + ":80", "[::]:80": name + ":80",
	} {
		if got := Reachable(addr); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

package accel

import (
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
)

func TestParseVersion(t *testing.T) {
	for in, want := range map[string]string{
		"QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)\nCopyright": "7.2.22",
		"QEMU emulator version 10.0.2":                                           "10.0.2",
		"QEMU emulator version 7.1.9":                                            "",
		"QEMU emulator version 2.12.0":                                           "",
		"sh: not found":                                                          "",
		"":                                                                       "",
	} {
		got, err := parseVersion(in)
		if got != want || (err == nil) != (want != "") || (err != nil && fleet.CodeOf(err) != fleet.CodeUnavailable) {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

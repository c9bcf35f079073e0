package fleet

import (
	"strings"
	"testing"
)

func TestTransitions(t *testing.T) {
	legal := map[[2]VMState]bool{
		{"", VMStateProvisioning}:                  true,
		{VMStateProvisioning, VMStateProvisioning}: true,
		{VMStateProvisioning, VMStateRunning}:      true,
		{VMStateProvisioning, VMStateDestroying}:   true,
		{VMStateProvisioning, ""}:                  true,
		{VMStateRunning, VMStateRunning}:           true,
		{VMStateRunning, VMStateDraining}:          true,
		{VMStateRunning, VMStateDestroying}:        true,
		{VMStateDraining, VMStateDraining}:         true,
		{VMStateDraining, VMStateDestroying}:       true,
		{VMStateDestroying, VMStateDestroying}:     true,
		{VMStateDestroying, ""}:                    true,
	}
	all := []VMState{"", VMStateProvisioning, VMStateRunning, VMStateDraining, VMStateDestroying, VMStateDestroyed, VMStateFailed}
	for _, from := range all {
		for _, to := range all {
			if from == "" && to == "" {
				continue
			}
			if got, want := CanTransition(from, to), legal[[2]VMState{from, to}]; got != want {
				t.Errorf("CanTransition(%q, %q) = %v, want %v", from, to, got, want)
			}
		}
	}
}

func TestTerminalStatesAreNeverStored(t *testing.T) {
	for _, s := range []VMState{VMStateDestroyed, VMStateFailed} {
		if !IsTerminalState(s) {
			t.Errorf("%s is not terminal", s)
		}
	}
	for _, s := range []VMState{VMStateProvisioning, VMStateRunning, VMStateDraining, VMStateDestroying} {
		if IsTerminalState(s) {
			t.Errorf("%s is terminal", s)
		}
	}
}

func TestTaskID(t *testing.T) {
	good := []string{"a", "A", "0", "Build_7.2-rc1", "x.y_z-W", strings.Repeat("a", 100)}
	for _, id := range good {
		if err := ValidateTaskID(id); err != nil {
			t.Errorf("ValidateTaskID(%q): %v", id, err)
		}
	}
	bad := []string{"", ".a", "-a", "_a", "a b", "a/b", "../../x y", "a\x00", "ä", strings.Repeat("a", 101), "a\n"}
	for _, id := range bad {
		err := ValidateTaskID(id)
		if CodeOf(err) != CodeInvalidArgument {
			t.Errorf("ValidateTaskID(%q) = %v, want invalid_argument", id, err)
			continue
		}
		details := err.(*Error).Details //nolint:errorlint,forcetypeassert // made just above
		if details[DetailLimit] != TaskIDRule || details[DetailRemedy] == "" {
			t.Errorf("ValidateTaskID(%q): details %v show no rule and remedy", id, details)
		}
	}
}

func TestNormalizeArch(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "x86_64": ArchAMD64, "X86-64": ArchAMD64, " amd64 ": ArchAMD64,
		"aarch64": ArchARM64, "ARM64": ArchARM64, "RISCV64": "riscv64",
	} {
		if got := NormalizeArch(in); got != want {
			t.Errorf("NormalizeArch(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestEventIDRoundTrip(t *testing.T) {
	for _, seq := range []uint64{0, 1, 1 << 40, 1<<64 - 1} {
		if got, ok := ParseEventID(EventID(seq)); !ok || got != seq {
			t.Errorf("ParseEventID(EventID(%d)) = %d, %v", seq, got, ok)
		}
	}
	for _, id := range []string{"", "-1", "1.0", "0x1", "18446744073709551616", " 1"} {
		if _, ok := ParseEventID(id); ok {
			t.Errorf("ParseEventID(%q) accepts it", id)
		}
	}
}

func TestLabelsAndHostIDs(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, test := range []struct {
		name        string
		label, host bool
	}{
		{"a", true, true},
		{"eu-west.1_b", true, true},
		{long, true, true},
		{long + "a", false, false},
		{"ends-", false, true},
		{"-begins", false, false},
		{"", false, false},
		{"a b", false, false},
		{"a\n", false, false},
		{"../a", false, false},
	} {
		if got := ValidLabel(test.name); got != test.label {
			t.Errorf("ValidLabel(%q) = %v", test.name, got)
		}
		if got := ValidHostID(test.name); got != test.host {
			t.Errorf("ValidHostID(%q) = %v", test.name, got)
		}
	}
}

package reconcile

import "testing"

func TestDefaultLimitsReadAsASentence(t *testing.T) {
	for _, c := range []struct {
		runtime, idle int64
		want          string
	}{
		{7200, 0, "at the age of 2h0m0s, not for being unused"},
		{0, 600, "once unused for 10m0s, not for its age"},
		{7200, 600, "at the age of 2h0m0s, or once unused for 10m0s"},
		{0, 0, "neither for its age nor for being unused"},
	} {
		if got := ends(c.runtime, c.idle); got != c.want {
			t.Errorf("%d s, %d s: %q, want %q", c.runtime, c.idle, got, c.want)
		}
	}
}

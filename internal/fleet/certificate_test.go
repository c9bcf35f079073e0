package fleet

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A certificate is whole exactly when it tells of each thing once.
func TestCertificateIsWholeOrSaysWhatItLacks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Certificate{Cause: rapid.SampledFrom([]string{ThawFork, ThawRestore, ThawResume, ThawGolden, "", "other"}).Draw(t, "cause")}
		c.Generation = rapid.SampledFrom([]string{"", "g1"}).Draw(t, "generation")
		var want []string
		for _, name := range CertificateNames {
			n := rapid.SampledFrom([]int{1, 1, 1, 1, 1, 0, 2}).Draw(t, name)
			for range n {
				c.Renewed = append(c.Renewed, Renewal{Name: name})
			}
			if n != 1 || name == RenewedGeneration && c.Generation == "" {
				want = append(want, name)
			}
		}
		if c.Cause == "" || c.Cause == "other" {
			want = append(want, "cause")
		}
		if got := c.Lacks(); !slices.Equal(got, want) {
			t.Fatalf("lacks %v, want %v", got, want)
		}
	})
}

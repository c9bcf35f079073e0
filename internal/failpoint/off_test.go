//go:build !failpoints

package failpoint

import "testing"

func TestHitDoesNothingWithoutTheTag(t *testing.T) {
	t.Setenv(Env, "a=error|nonsense")
	if err := Hit("a"); err != nil {
		t.Fatalf("Hit obeyed %s without the build tag: %v", Env, err)
	}
}

package hostmetrics

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// The reference page names what a host agent exports, and no more.
func TestReferenceIsWhatIsExported(t *testing.T) {
	var diskErr error
	m := New(func() map[string]int { return map[string]int{"running": 2} }, func() (free, total int64, err error) { return 5, 10, diskErr })
	m.Observe("create", time.Now(), errors.New("secret detail"))
	m.Removed("tap")
	m.Found([]string{"tap", "tap", "mount"})
	scrape := func() string {
		w := httptest.NewRecorder()
		m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return w.Body.String()
	}
	text := scrape()
	for _, line := range []string{
		`fuse_hostd_operations_total{code="internal",verb="create"} 1`, `fuse_hostd_unknown_objects{kind="tap"} 2`,
		"fuse_hostd_disk_free_bytes 5", "fuse_hostd_disk_bytes 10", `fuse_hostd_vms{phase="running"} 2`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no line %s", line)
		}
	}
	page, err := os.ReadFile("../../../docs/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	told := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(fuse_hostd_[a-z_]+)`").FindAllStringSubmatch(string(page), -1) {
		told[row[1]] = true
	}
	for _, help := range regexp.MustCompile(`(?m)^# TYPE (\S+)`).FindAllStringSubmatch(text, -1) {
		if !told[help[1]] {
			t.Errorf("docs/reference/metrics.md does not have %s", help[1])
		}
		delete(told, help[1])
	}
	if len(told) > 0 {
		t.Errorf("docs/reference/metrics.md has %v, which nobody exports", told)
	}
	diskErr = errors.New("gone")
	if strings.Contains(scrape(), "fuse_hostd_disk") {
		t.Error("a disk that cannot be read has series")
	}
}

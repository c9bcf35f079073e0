package service

import (
	"maps"
	"testing"
)

func TestDetails(t *testing.T) {
	got := detailsOf([]byte(`{services: {web: {image: "shop:1", ports: ["8080:80", {target: 53, published: "5353", host_ip: 127.0.0.1, protocol: udp}]}, db: {image: pg}}}`))
	want := map[string]string{"web": "shop:1, ports 8080:80 127.0.0.1:5353:53/udp", "db": "pg"}
	if !maps.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if detailsOf([]byte("{")) != nil {
		t.Error("a file that is none has details")
	}
}

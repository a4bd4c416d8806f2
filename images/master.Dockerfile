# The master, with the agent beside it for clients that have none (GET /agent).
# `make images` builds it; the context is dist/image, which holds nothing but what is copied here.
FROM scratch
COPY master agent /muster/
# Empty, and this user's: a mounted volume covers it in a cluster, and without one `--backend process` has a place too.
COPY --chown=65532:65532 state /var/lib/muster
# Only a number lets Kubernetes see that it is not root.
USER 65532:65532
ENV MUSTER_STATE_DIR=/var/lib/muster
EXPOSE 7897
ENTRYPOINT ["/muster/master"]

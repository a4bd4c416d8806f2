# An image with the master and the agent. Clients without an agent request it from the master (GET /agent). Pods of jobs that
# bring their code copy the agent from this image. `make images` builds it from the folder dist/image.
FROM scratch
COPY master agent /muster/
# An empty folder that the user may write to. In a cluster, a volume is mounted in its place.
COPY --chown=65532:65532 state /var/lib/muster
# Use a number, not a name: Kubernetes can then verify that the user is not root.
USER 65532:65532
ENV MUSTER_STATE_DIR=/var/lib/muster
EXPOSE 7897
ENTRYPOINT ["/muster/master"]

import pytest

from epochmeter.trace.kernels import classify

KERNELS = [  # as in traces of V100, A100, H100 and MI250
    ("volta_sgemm_64x64_nt", "fp32", False),
    ("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "fp32", False),
    ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)", "fp32", False),
    ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<__half, float, 512, true, 1>(cudnnTensorStruct)", "fp16", False),
    ("volta_h884gemm_256x64_ldg8_tn", "fp16", True),
    ("turing_fp16_s1688gemm_fp16_256x128_ldg8_f2f_nt", "fp16", True),
    ("ampere_dgemm_64x64_nn", "fp64", False),
    ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "bf16", True),
    ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nn_align4>(Params)", "tf32", True),
    ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16", "tf32", True),
    ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4", "fp32", False),
    ("sm80_xmma_fprop_implicit_gemm_interleaved_i8i8_i8i32_f32_nchw_vect_c_32kcrs", "int8", True),
    ("nvjet_hsh_192x192_64x4_1x2_h_bz_coopB_TNN", "fp16", True),
    ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "bf16", True),
    ("nvjet_qqtst_128x128_128x6_2x1_v_bz_TNT", "fp8", True),
    ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, cutlass::half_t>>()", "fp16", True),
    ("void flash_bwd_dq_dk_dv_loop_seqk_kernel<Flash_bwd_kernel_traits<64, cutlass::bfloat16_t>>", "bf16", True),
    ("fmha_cutlassF_f16_aligned_64x64_rf_sm80(PyTorchMemEffAttention::Params)", "fp16", True),
    ("_ZN19cutlass_cudnn_train6KernelINS_4conv12tfloat32_tENS_40ColumnMajorTensorOpMultiplicandE", "tf32", True),
    ("triton_tem_fused_addmm_native_layer_norm_bf16_1", "unknown", None),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>", "bf16", False),
    ("void at::native::elementwise_kernel<128, 2, at::native::CUDAFunctor_add<double>>", "fp64", False),
    ("Cijk_Ailk_Bjlk_SB_MT64x16x16_MI16x16x1_SN_LDSB0_ISA90a", "fp32", True),
    ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SE", "fp16", True),
    ("cudnn::ops::cask_unnamed", "unknown", None),
]


@pytest.mark.parametrize(("name", "precision", "tensor_cores"), KERNELS, ids=lambda value: str(value)[:40])
def test_names_show_precision_and_tensor_cores(name, precision, tensor_cores):
    assert classify(name) == (False, precision, tensor_cores)


def test_communication_uses_no_tensor_cores():
    for name in ("ncclKernel_AllReduce_RING_LL_Sum_float()", "ncclDevKernel_AllGather_RING_LL", "rcclGenericKernel<1>"):
        assert classify(name)[::2] == (True, False)
